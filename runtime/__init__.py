"""The runtime that runs beside a serving engine: capture, bench and ledger. Empty in this version."""
