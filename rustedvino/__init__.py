"""RustedVINO: an OpenAI-compatible inference server for Intel hardware on OpenVINO GenAI."""

__version__ = "0.1.0"
