"""One file per command or group of commands; main.py names them all."""
