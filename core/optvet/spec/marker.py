"""The mark of a plugin's hooks, apart from their specifications: a worker imports plugins, too."""

from __future__ import annotations

import pluggy

hookimpl = pluggy.HookimplMarker("optvet")
