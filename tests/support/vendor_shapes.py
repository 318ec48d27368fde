"""Answers in the shape of each vendor's API, with one reading of them that tests rely on."""

from __future__ import annotations

from typing import Any


def vast_offer(**changes: Any) -> dict[str, Any]:
    """A 2x RTX 3090 machine with NVLink at $0.40 an hour; interruptible from $0.21."""
    return {
        "id": 7001,
        "machine_id": 91,
        "gpu_name": "RTX 3090",
        "num_gpus": 2,
        "gpu_ram": 24576,
        "dph_base": 0.39,
        "dph_total": 0.4,
        "min_bid": 0.2,
        "storage_cost": 0.72,
        "storage_total_cost": 0.01,
        "bw_nvlink": 56.2,
        "inet_down": 807.6,
        "inet_up": 727.5,
        "cuda_max_good": 12.4,
        "geolocation": "Norway, NO",
        "rentable": True,
        "rented": False,
        "hosting_type": 0,
        "cpu_cores": None,
        "reliability2": 0.998,
        "verification": "verified",
    } | changes


def vast_answer(*offers: dict[str, Any]) -> dict[str, Any]:
    return {"offers": list(offers or (vast_offer(),))}


def runpod_type(**changes: Any) -> dict[str, Any]:
    """An RTX 4090 at $0.69 secure, $0.34 community, spot for less; up to 8 together."""
    return {
        "id": "NVIDIA GeForce RTX 4090",
        "displayName": "RTX 4090",
        "memoryInGb": 24,
        "maxGpuCount": 8,
        "maxGpuCountCommunityCloud": 4,
        "maxGpuCountSecureCloud": 8,
        "secureCloud": True,
        "communityCloud": True,
        "securePrice": 0.69,
        "communityPrice": 0.34,
        "secureSpotPrice": 0.35,
        "communitySpotPrice": 0.2,
        "oneWeekPrice": None,
        "oneMonthPrice": None,
        "lowestPrice": {
            "minimumBidPrice": 0.2,
            "uninterruptablePrice": 0.34,
            "stockStatus": "Medium",
        },
    } | changes


def runpod_answer(*types: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"gpuTypes": list(types or (runpod_type(),))}}


def lambda_type(name: str = "gpu_2x_a6000", **changes: Any) -> dict[str, Any]:
    """Two A6000 at $1.60 an hour for both, in one region."""
    instance = {
        "name": name,
        "description": "2x A6000 (48 GB)",
        "gpu_description": "A6000 (48 GB)",
        "price_cents_per_hour": 160,
        "specs": {"vcpus": 28, "memory_gib": 200, "storage_gib": 1024, "gpus": 2},
    } | changes
    return {
        "instance_type": instance,
        "regions_with_capacity_available": [
            {"name": "us-west-1", "description": "California, USA"}
        ],
    }


def lambda_answer(*types: dict[str, Any]) -> dict[str, Any]:
    return {"data": {entry["instance_type"]["name"]: entry for entry in types or (lambda_type(),)}}
