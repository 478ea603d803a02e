"""The conformance suite behind `turnwire check`: cases that judge any agent by the frames it sends."""
