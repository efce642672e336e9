"""Pages in a real Chromium, driven by BrowserGym in a process of its own."""
