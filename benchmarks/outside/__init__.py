"""The campaign that takes away what is outside of YATT while runs train (`make outside`)."""
