"""`python -m latencylab` is the console script `latencylab`."""

from latencylab.cli import main

if __name__ == "__main__":
    main()
