"""The compiled modules under AddressSanitizer and UndefinedBehaviorSanitizer: ``python -m tests.sanitizer``."""
