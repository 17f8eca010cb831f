"""The command line. Modules are imported when their command is called, so that help comes at once."""
