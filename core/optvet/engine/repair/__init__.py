"""Repair of converted models: edits are proposed, tried on copies, and kept only if they hold.

``scene`` says where a model parts from its source, ``propose`` which edits might mend it there,
``window`` which of them explain a missing value, ``gate`` which hold on all inputs, and ``search``
puts a patch together and leaves out what it does not need.
"""
