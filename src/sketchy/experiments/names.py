"""The names of optimizers in tables and pictures. Files and commands have the short ones."""

import re

NAMES = {
    "adafactor": "Adafactor",
    "adamw": "AdamW",
    "adamw_95": "AdamW, β₂ 0.95",
    "adamw_fused": "AdamW, fused",
    "dion2": "Dion2",
    "distributed_shampoo": "Distributed Shampoo",
    "galore_torch": "GaLore (galore_torch)",
    "heavyball_psgd_kron": "PSGD Kron (heavyball)",
    "heavyball_soap": "SOAP (heavyball)",
    "muon": "Muon",
    "muon_8bit": "Muon, 8 bits",
    "po_alice": "Alice (pytorch_optimizer)",
    "po_galore": "GaLore (pytorch_optimizer)",
    "po_kron": "PSGD Kron (pytorch_optimizer)",
    "po_scalable_shampoo": "Scalable Shampoo (pytorch_optimizer)",
    "po_shampoo": "Shampoo (pytorch_optimizer)",
    "po_soap": "SOAP (pytorch_optimizer)",
    "shampoo": "Shampoo, dense (ours)",
    "sketchy_shampoo": "SketchyShampoo",
    "sketchy_shampoo_sweeps": "SketchyShampoo, sweeps",
    "sketchy_soap": "SketchySOAP",
    "sketchy_soap_budget": "SketchySOAP, budget",
    "sketchy_soap_int8": "SketchySOAP, 8 bits",
    "sketchy_soap_polar": "SketchySOAP, polar",
    "sketchy_soap_shapes": "SketchySOAP, by shape",
    "sketchy_soap_small": "SketchySOAP, 4 bits",
    "sketchy_soap_small_polar": "SketchySOAP, 4 bits, polar",
    "sketchy_soap_sweeps": "SketchySOAP, sweeps",
    "soap": "SOAP, dense (ours)",
    "soap_reference": "SOAP (its authors')",
    "torchao_adamw_8bit": "AdamW, 8 bits (torchao)",
}


def shown(optimizer: str, rank: int | None = None) -> str:
    """The name of an optimizer as readers see it. One without an entry keeps its short name.

    >>> shown("sketchy_soap", 32), shown("sketchy_soap: all on"), shown("adamw floor"), shown("mine")
    ('SketchySOAP, rank 32', 'SketchySOAP: all on', 'AdamW floor', 'mine')
    """
    name = re.sub(r"^\w+", lambda found: NAMES.get(found[0], found[0]), optimizer)
    return name if rank is None else f"{name}, rank {rank}"
