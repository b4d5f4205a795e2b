"""A soup to try: three ways to fill a response with letters, of which each leaves less room for the others."""
