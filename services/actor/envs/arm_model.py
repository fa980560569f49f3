"""The robot arm as a MuJoCo model, written in code: seven revolute joints with Franka kinematics, no asset files.

Frames, offsets and ranges are the public ones of the Franka arm. The bodies are drawn from cylinders, capsules,
ellipsoids and spheres; they carry no mass, since each link's inertia is stated on its own, so that looks and dynamics
can change apart. The arm is mounted on a round table whose top is z = 0, and x points to the front.

Every body is fully gravity compensated, as on the real arm, which is the same as having no gravity at all; so the model
says that, and saves the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

NUM_JOINTS = 7
TIMESTEP_S = 0.005
HOME_POSTURE = (0.0, -0.35, 0.0, -2.25, 0.0, 1.9, 0.785)  # rad, [7]
TOOL_SITE = "tool"
CAMERA = "three_quarter"
GOAL_BODY = "goal"
MAX_PICTURE = (1280, 1280)  # width and height of the largest picture, pixels

_TABLE_CENTRE_X = 0.20


@dataclass(frozen=True)
class _Link:
    """One moving link; its joint turns about z of its own frame."""

    position: str  # of the frame in the parent's, m
    rotation: str  # of the frame in the parent's, euler, rad
    limits: Tuple[float, float]  # rad
    mass: float  # kg
    centre: str  # of mass, m
    inertia: str  # principal moments, kg m^2
    stiffness: float  # of the joint's position servo, N m / rad
    damping: float  # N m s / rad
    torque: float  # largest, N m
    geoms: str


def _cylinder(material: str, radius: float, ends: str, collides: bool = False) -> str:
    return _segment("cylinder", material, radius, ends, collides)


def _capsule(material: str, radius: float, ends: str, collides: bool = False) -> str:
    return _segment("capsule", material, radius, ends, collides)


def _segment(kind: str, material: str, radius: float, ends: str, collides: bool) -> str:
    group = "solid" if collides else "visual"
    return f'<geom class="{group}" type="{kind}" material="{material}" size="{radius}" fromto="{ends}"/>'


def _ellipsoid(material: str, radii: str, position: str, rotation: str = "0 0 0") -> str:
    return (
        f'<geom class="visual" type="ellipsoid" material="{material}" size="{radii}" pos="{position}"'
        f' euler="{rotation}"/>'
    )


def _hub(axis: str, centre: Tuple[float, float, float], radius: float, half_width: float) -> str:
    """A joint's housing: a shell around the axis, an accent ring near each end, and graphite caps."""
    x, y, z = centre

    def along(start: float, end: float) -> str:
        if axis == "y":
            return f"{x} {y + start:.4f} {z} {x} {y + end:.4f} {z}"
        return f"{x} {y} {z + start:.4f} {x} {y} {z + end:.4f}"

    w = half_width
    return "".join(
        (
            _cylinder("shell", radius, along(-w, w)),
            _cylinder("accent", radius * 1.015, along(w - 0.014, w - 0.006)),
            _cylinder("accent", radius * 1.015, along(-w + 0.006, -w + 0.014)),
            _cylinder("graphite", radius * 0.86, along(-w - 0.007, w + 0.007)),
        )
    )


def _links() -> Tuple[_Link, ...]:
    quarter = "1.5707963267948966"
    return (
        _Link(
            "0 0 0.333", "0 0 0", (-2.8973, 2.8973), 3.2, "0 -0.01 -0.05", "0.03 0.03 0.012", 600, 50, 87,
            _cylinder("accent", 0.0605, "0 0 -0.187 0 0 -0.179")
            + _cylinder("shell", 0.0595, "0 0 -0.19 0 0 -0.06")
            + _capsule("shell", 0.0595, "0 0 -0.06 0 0 0"),
        ),
        _Link(
            "0 0 0", f"-{quarter} 0 0", (-1.7628, 1.7628), 3.2, "0 -0.07 0.01", "0.03 0.012 0.03", 600, 50, 87,
            _hub("z", (0, 0, 0), 0.061, 0.072)
            + _capsule("shell", 0.0565, "0 -0.02 0 0 -0.175 0"),
        ),
        _Link(
            "0 -0.316 0", f"{quarter} 0 0", (-2.8973, 2.8973), 2.6, "0.03 0.01 -0.04", "0.02 0.02 0.01", 500, 40, 87,
            _cylinder("graphite", 0.0535, "0 0 -0.145 0 0 -0.105")
            + _cylinder("accent", 0.0575, "0 0 -0.118 0 0 -0.110")
            + _cylinder("shell", 0.0565, "0 0 -0.112 0 0 -0.055")
            + _capsule("shell", 0.0565, "0 0 -0.055 0.02 0 -0.02")
            + _capsule("shell", 0.050, "0.02 0 -0.02 0.0825 0 0"),
        ),
        _Link(
            "0.0825 0 0", f"{quarter} 0 0", (-3.0718, -0.0698), 2.6, "-0.03 0.06 0.01", "0.02 0.01 0.02", 500, 40, 87,
            _hub("z", (0, 0, 0), 0.054, 0.063)
            + _capsule("shell", 0.0485, "-0.01 0.01 0 -0.0825 0.085 0")
            + _capsule("shell", 0.0525, "-0.0825 0.08 0 -0.0825 0.115 0"),
        ),
        _Link(
            "-0.0825 0.384 0", f"-{quarter} 0 0", (-2.8973, 2.8973), 2.0, "0 0 -0.12", "0.025 0.025 0.006", 250, 20, 12,
            _cylinder("graphite", 0.0495, "0 0 -0.27 0 0 -0.235")
            + _cylinder("accent", 0.0535, "0 0 -0.244 0 0 -0.236")
            + _cylinder("shell", 0.0525, "0 0 -0.237 0 0 -0.19")
            + _capsule("shell", 0.0525, "0 0 -0.19 0 0.012 -0.15")
            + _capsule("shell", 0.0445, "0 0.012 -0.15 0 0.022 -0.02", collides=True),
        ),
        _Link(
            "0 0 0", f"{quarter} 0 0", (-0.0175, 3.7525), 1.5, "0.05 0 0.01", "0.006 0.006 0.006", 250, 20, 12,
            _hub("z", (0, 0, 0), 0.049, 0.058)
            + _capsule("shell", 0.043, "0 0 0 0.088 0 0", collides=True),
        ),
        _Link(
            "0.088 0 0", f"{quarter} 0 0", (-2.8973, 2.8973), 0.9, "0 0 0.06", "0.003 0.003 0.002", 100, 8, 12,
            _cylinder("shell", 0.045, "0 0 -0.045 0 0 0.058", collides=True)
            + _ellipsoid("graphite", "0.041 0.041 0.014", "0 0 -0.045")
            + _cylinder("accent", 0.0462, "0 0 0.058 0 0 0.066")
            + _cylinder("graphite", 0.040, "0 0 0.066 0 0 0.107")
            + _hand(),
        ),
    )  # fmt: skip


def _hand() -> str:
    """The gripper, half open and fixed; the tool point lies between the finger tips."""
    fingers = "".join(
        _capsule("graphite", 0.0115, f"0 {side * 0.036} 0.06 0 {side * 0.036} 0.083", collides=True)
        + _capsule("graphite", 0.0085, f"0 {side * 0.034} 0.083 0 {side * 0.026} 0.104", collides=True)
        + _ellipsoid("accent", "0.0075 0.0045 0.010", f"0 {side * 0.0225} 0.103")
        for side in (-1, 1)
    )
    return (
        '<body name="hand" pos="0 0 0.107" euler="0 0 -0.7853981633974483">'
        '<inertial mass="0.5" pos="0 0 0.03" diaginertia="0.002 0.001 0.002"/>'
        + _capsule("shell", 0.030, "0 -0.068 0.030 0 0.068 0.030", collides=True)
        + _ellipsoid("shell", "0.036 0.090 0.026", "0 0 0.022")
        + _cylinder("graphite", 0.0305, "0 -0.0705 0.030 0 -0.0635 0.030")
        + _cylinder("graphite", 0.0305, "0 0.0635 0.030 0 0.0705 0.030")
        + fingers
        + f'<site name="{TOOL_SITE}" pos="0 0 0.1034" size="0.004" group="4"/></body>'
    )


def _chain() -> str:
    """The links, each a body within the one before."""
    opened = ""
    for index, link in enumerate(_links(), start=1):
        low, high = link.limits
        opened += (
            f'<body name="link{index}" pos="{link.position}" euler="{link.rotation}">'
            f'<inertial mass="{link.mass}" pos="{link.centre}" diaginertia="{link.inertia}"/>'
            f'<joint name="joint{index}" axis="0 0 1" range="{low} {high}" damping="{link.damping}"/>{link.geoms}'
        )
    return opened + "</body>" * NUM_JOINTS


def _servos() -> str:
    """Position servos; their damping is the joints' own, which the integrator treats implicitly."""
    return "".join(
        f'<position name="servo{index}" joint="joint{index}" kp="{link.stiffness}"'
        f' ctrlrange="{link.limits[0]} {link.limits[1]}" forcerange="-{link.torque} {link.torque}"/>'
        for index, link in enumerate(_links(), start=1)
    )


def _base() -> str:
    return (
        _cylinder("graphite", 0.105, "0 0 0 0 0 0.012")
        + _cylinder("accent", 0.0905, "0 0 0.012 0 0 0.018")
        + _cylinder("shell", 0.088, "0 0 0.018 0 0 0.055")
        + _ellipsoid("shell", "0.088 0.088 0.055", "0 0 0.055")
        + _ellipsoid("shell", "0.105 0.068 0.050", "-0.045 0 0.055")
        + _cylinder("shell", 0.066, "0 0 0.055 0 0 0.136")
        + _cylinder("graphite", 0.056, "0 0 0.136 0 0 0.15")
    )


def _scenery() -> str:
    x = _TABLE_CENTRE_X
    return (
        '<geom class="visual" name="floor" type="plane" material="floor" size="0 0 1" pos="0 0 -0.62"/>'
        '<geom name="work_plane" type="plane" size="2 2 1" contype="0" conaffinity="1" group="3"/>'
        + _cylinder("table", 0.60, f"{x} 0 -0.030 {x} 0 -0.001")
        + _cylinder("trim", 0.588, f"{x} 0 -0.042 {x} 0 -0.030")
        + _cylinder("pedestal", 0.16, f"{x} 0 -0.59 {x} 0 -0.042")
        + _cylinder("pedestal", 0.34, f"{x} 0 -0.62 {x} 0 -0.595")
        + _ellipsoid("pedestal", "0.30 0.30 0.035", f"{x} 0 -0.595")
    )


def arm_xml() -> str:
    """The whole scene as MJCF: table, arm with seven position servos, and a goal (a mocap body without collisions)."""
    width, height = MAX_PICTURE
    return f"""
<mujoco model="shoal_arm">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP_S}" gravity="0 0 0" integrator="Euler" cone="pyramidal" iterations="20"/>
  <size memory="1M"/>
  <visual>
    <global offwidth="{width}" offheight="{height}" fovy="34"/>
    <quality shadowsize="2048" offsamples="4" numslices="40" numstacks="14"/>
    <headlight ambient="0.34 0.35 0.37" diffuse="0.22 0.22 0.23" specular="0.05 0.05 0.05"/>
    <map znear="0.02" zfar="30" haze="0.35" fogstart="4" fogend="14" shadowclip="1.0" shadowscale="0.6"/>
    <rgba haze="0.80 0.84 0.88 1" fog="0.80 0.84 0.88 1"/>
  </visual>
  <default>
    <joint type="hinge" armature="0.15"/>
    <default class="visual"><geom contype="0" conaffinity="0" mass="0"/></default>
    <default class="solid"><geom contype="1" conaffinity="0" mass="0"/></default>
  </default>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.93 0.95 0.97" rgb2="0.60 0.68 0.76"
      width="256" height="1536"/>
    <material name="shell" rgba="0.93 0.935 0.945 1" specular="0.45" shininess="0.55"/>
    <material name="graphite" rgba="0.135 0.145 0.165 1" specular="0.35" shininess="0.45"/>
    <material name="accent" rgba="1.0 0.43 0.07 1" specular="0.3" shininess="0.4" emission="0.12"/>
    <material name="table" rgba="0.80 0.69 0.55 1" specular="0" shininess="0"/>
    <material name="trim" rgba="0.30 0.25 0.21 1" specular="0.1" shininess="0.2"/>
    <material name="pedestal" rgba="0.20 0.215 0.24 1" specular="0.2" shininess="0.3"/>
    <material name="floor" rgba="0.76 0.79 0.82 1" specular="0.02" shininess="0.05"/>
    <material name="goal" rgba="0.08 0.85 0.50 0.34" emission="0.8" specular="0.2" shininess="0.7"/>
    <material name="goal_core" rgba="0.70 1.0 0.80 1" emission="1.0" specular="0"/>
  </asset>
  <worldbody>
    <light pos="1.1 -1.3 2.6" dir="-0.36 0.5 -0.88" directional="true" castshadow="true"
      diffuse="0.58 0.56 0.53" specular="0.3 0.3 0.3"/>
    <light pos="-1.5 1.5 1.6" dir="0.6 -0.6 -0.55" directional="true" castshadow="false"
      diffuse="0.14 0.17 0.22" specular="0.1 0.1 0.1"/>
    <body name="look_at" pos="0.20 0.0 0.30"/>
    <camera name="{CAMERA}" mode="targetbody" target="look_at" pos="1.75 -1.50 0.88" fovy="29.5"/>
    {_scenery()}
    {_base()}
    {_chain()}
    <body name="{GOAL_BODY}" mocap="true" pos="0.5 0 0.4">
      <inertial mass="1" pos="0 0 0" diaginertia="0.001 0.001 0.001"/>
      <geom class="visual" type="sphere" size="0.05" material="goal"/>
      <geom class="visual" type="sphere" size="0.014" material="goal_core"/>
    </body>
  </worldbody>
  <actuator>{_servos()}</actuator>
</mujoco>
"""
