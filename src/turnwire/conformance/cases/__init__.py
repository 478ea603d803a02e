"""The cases, a module for each part of the protocol; `turnwire.conformance.catalogue` has them all."""
