"""The dashboard's pages: routes that render the read models as HTML. `routes.install` adds them to the application."""
