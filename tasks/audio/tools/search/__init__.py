"""An index of recordings, searched with words and with sounds."""
