"""The worker process: frames in, frames out, one engine. Imports nothing of http, api or hub."""
