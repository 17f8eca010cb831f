"""What a job is, and every decision about it. Pure: no I/O, no dependency but msgspec and cronsim."""
