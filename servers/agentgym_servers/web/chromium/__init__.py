"""Pages in a real Chromium, driven by BrowserGym in a separate process."""
