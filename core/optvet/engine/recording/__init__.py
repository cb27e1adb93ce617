"""Values of a model that were recorded where optvet does not run, and what is judged of them here.

::

    kit       the model with some inner values as outputs, inputs, and clients that run it anywhere
    reading   what a client wrote: foreign data
    judging   the recorded values beside those of the clean room → the nodes between right and wrong
"""
