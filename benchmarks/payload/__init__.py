"""An iteration whose samples carry images, by the product's data plane and by one central controller, on the same actors."""
