"""The cases, a module for each part of the protocol; `turnwire_check.catalogue` has them all."""
