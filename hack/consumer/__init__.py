"""An example consumer of events, exactly once in effect: see docs/events.md. Run it with `python -m hack.consumer --help`."""
