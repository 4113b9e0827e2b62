"""Real deployments: each integration imports its library only when it is used.

fedleak.integrations.flower     record, defend and replay Flower federations   (pip install 'fedleak[flower]')
fedleak.integrations.opacus     private local training and what it spends      (pip install 'fedleak[opacus]')
fedleak.integrations.own_models recordings of any nn.Module, made ready for an attack; secure aggregation
fedleak.integrations.confidence how sure an attack is where nobody knows the truth
"""

from __future__ import annotations

__all__: list[str] = []
