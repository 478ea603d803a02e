"""Projections of the log for readers: REST envelopes, ACP v1 and v2, transcripts. Pure."""
