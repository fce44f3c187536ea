"""What tests of several nodes share."""

from tests.exactness.conftest import patient_scheduler, references

__all__ = ["patient_scheduler", "references"]
