"""Mount points, and the words in which mount(8), umount(8) and people speak of them."""
