"""A trained pair of encoders as what embeds sounds and words; and words that it was not trained on."""
