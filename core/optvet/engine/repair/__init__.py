"""Repair of converted models: edits are proposed, tried on copies, and kept only if they hold.

``aligned_run`` says where a model parts from its source, ``propose`` which edits might mend it,
``window`` which of them explain a missing value, ``acceptance`` which hold on all inputs, and
``repair_search`` puts a patch together and leaves out what it does not need.
"""
