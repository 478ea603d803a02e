"""What readers get: a log, or many, as one open response that can be resumed anywhere; or its history at once."""
