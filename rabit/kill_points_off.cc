#include "rabit/kill_points.h"

namespace rabit::layer {

const bool kServesKillPoints = false;

}  // namespace rabit::layer
