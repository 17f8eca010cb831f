"""``python -m taskharbor`` is the command ``taskharbor``."""

from taskharbor.cli.main import main

if __name__ == "__main__":
    main()
