"""Finding what is wrong: samples are compared, passes searched, culprits confirmed."""
