"""The reference model that every driver is held to."""

from taskharbor.testing.reference.model import ReferenceModel

__all__ = ["ReferenceModel"]
