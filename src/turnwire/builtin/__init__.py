"""The built-in agent: an ACP agent of turnwire's own, with a language model behind it or without one.

Takes its place behind `turnwire agent` and, by default, behind `turnwire serve`. A program like any other agent:
nothing in the layers below knows of it. Never imports a model library before a model is configured.
"""
