"""Who may do what: users, their roles, their tokens, and sign-in through an identity provider."""
