"""What a trial shows on its samples: the judge is asked, and noise measured where it matters."""
