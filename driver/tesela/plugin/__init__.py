"""The node program: it joins core and edges and fixes the order of effects. No rule of the field is decided here."""
