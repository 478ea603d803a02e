"""What may happen: inputs, events, effects, the turn's table. Pure: no clock, no I/O, no logging."""
