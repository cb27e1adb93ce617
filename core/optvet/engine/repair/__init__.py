"""Repairs converted models: proposes edits, tries them on copies, keeps those that hold.

``aligned_run`` says where a model parts from its source, ``propose`` which edits might mend it,
``window`` which of them explain a missing value, ``acceptance`` which hold on all inputs, and
``repair_search`` puts a patch together and leaves out what it does not need.
"""
