"""Headers of requests and their answers, by what they are about."""
