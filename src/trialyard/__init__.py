"""The yard in which language-model agents learn by trial and error."""

__version__ = "0.1.0"
