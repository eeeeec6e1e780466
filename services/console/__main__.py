"""`python -m services.console`, the same as `rollstream`."""

from services.console.cli import main

if __name__ == "__main__":
    main()
