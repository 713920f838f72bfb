// Whether the library that a program links serves mock=: rabit_mock_static does, rabit does not.
#pragma once

namespace rabit::layer {

extern const bool kServesKillPoints;

}  // namespace rabit::layer
