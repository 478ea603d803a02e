"""Agents of sessions: processes and their guards, links, frames, files and terminals."""
