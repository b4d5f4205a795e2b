"""The sections of a spec, one module each."""
