"""Commands about soups: `soup run`, `soup resume`, `soup show`, `soup merge`."""
