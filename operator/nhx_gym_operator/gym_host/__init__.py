"""What runs in the image nhx-gym-host: the gate that proves the sandbox, and Gym behind one port."""
