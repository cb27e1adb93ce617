"""Cases (one optimizer on one model) and the trials that are made of them."""
