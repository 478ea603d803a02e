"""Fake servers of language models: they speak the real APIs over real sockets and answer by a script.

Takes replies made of typed steps; gives the streams, the status codes and the refusals of OpenAI's, Anthropic's
and Gemini's APIs, and the requests it got. Also how known agents are pointed at one. Never reaches a network: they
listen on the loopback address only. Tests import it as `turnwire.testing.models`.
"""
