"""Classification of nodes by UniMP (arXiv 2009.03509): a graph transformer that sees features and some of the labels."""
